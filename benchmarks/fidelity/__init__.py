"""The twin beside public measurements of real engines."""
