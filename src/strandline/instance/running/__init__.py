"""What goes on of an instance: a loop for each source and each endpoint, waves and lanes for views."""
