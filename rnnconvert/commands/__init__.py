"""What each command does: find the kind of the path, and hand it to that kind."""
