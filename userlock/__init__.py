"""userlock."""
