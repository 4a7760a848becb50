"""The engine and its server, without a user interface."""

import logging

# Whoever runs it says where its log goes; without that, Python would print warnings to stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())
