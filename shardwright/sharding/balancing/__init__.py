"""The balancer's policy: the chunks to split and to move, and the reasons.

Owns the rules, as generators that query the few chunks that they need; `configd.balancer` answers and acts.

May import `sharding`.
"""
