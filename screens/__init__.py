"""The screens of the terminal application, one a module."""
