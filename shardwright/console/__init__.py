"""The console: a web server that shows one cluster, as a client of its routers and of the daemons' metrics.

It imports no daemon; `daemon` gives it options and logs, `sharding` the order of shard keys, `wire` its logger.

hypercorn runs on asyncio, not on trio, because pymongo's asynchronous client works with asyncio alone. That client
already does everything a console needs: it logs in by SCRAM and again on each new connection, chooses another router
when one dies, and supports cursors and the TLS options of connection strings. Our own client on trio would repeat all
of it.

Functions that read the cluster raise `console.reader.Refused`, which the application turns into an error page or reply.

::

    cli ▶ server ▶ app ▶ pages, api                 the process, its routes
    overview, collections, heat_map, operations,    views: plain data for pages and for the API
      balancer, security, explaining, actions
    overview ▶ problems                             faults of the cluster in words
    drawing                                         data to SVG
    lint, explaining ▶ placements ▶ prediction      the shards that an operation will contact
    sessions ▶ reader                               users, and their reads
    metrics                                         rates and latencies from the daemons' metrics
"""
