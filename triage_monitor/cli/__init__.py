"""The command line: parses argv, calls the package, prints tables or JSON."""
