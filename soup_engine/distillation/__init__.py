"""Drafts: made out of a target's layers, taught its answers, and measured beside it."""
