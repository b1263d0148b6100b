"""The page that ``mlirstitch explain --html`` writes."""
