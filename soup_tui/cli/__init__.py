"""The command line: one module a command. Importing it loads neither torch nor textual."""
