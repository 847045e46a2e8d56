"""What the donor of a migration hands out: the documents of the range, and then what became of them."""
