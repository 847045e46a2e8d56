"""The recipient's side of a migration: it pulls a range from the donor and, in the end, takes it over."""
