"""What starts the server takes these from here."""
