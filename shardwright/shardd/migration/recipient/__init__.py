"""The recipient's side of a migration: it pulls a range from the donor, and owns it after the commit."""
