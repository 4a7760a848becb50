"""Small widgets that the screens share."""
