"""What commands are made of: the steps over texts, and the steps over pairs of texts."""
