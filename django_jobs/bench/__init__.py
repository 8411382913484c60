"""How fast a user's own database runs jobs, and what limits it."""
