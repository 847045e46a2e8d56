"""Transactions of clients and of the router itself: the requests to each participant, commit and abort.

`transaction_rules` refuses what cannot run in a transaction, and `transaction_table` checks the session out.
`transaction_sender` sends statements with the fields that `router_transaction` decides. `commit_and_abort` ends it.
May import `replies` and `sending`.
"""
