"""What a donor hands out to the recipient: the documents of the range, and then the changes to them."""
