"""How far the answers of an export are from those of its source."""
