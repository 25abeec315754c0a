"""The protocol as a model in Promela, and what is checked of it: see README.md beside this."""
