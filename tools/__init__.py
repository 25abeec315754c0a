"""Tools for work on the project; not shipped."""
