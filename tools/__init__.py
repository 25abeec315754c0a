"""What the project itself is worked on with; nothing of it is shipped."""
