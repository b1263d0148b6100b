"""mlirstitch."""
