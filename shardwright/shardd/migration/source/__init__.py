"""The donor's source for the recipient: the documents of the range, and then the changes to them."""
