"""What a command line and its streams bring: chosen classes, arguments of other programs."""
