"""The balancer's policy: which chunks to split and which to move, and why.

Owns the rules, as generators that ask for the few chunks that they need; `configd.balancer` answers and acts.
May import `sharding`.
"""
