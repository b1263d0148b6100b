"""The page of ``mlirstitch simulate --html``: timeline, memory and figures of a simulated step."""
