"""The recipient's side of a migration: it pulls a range from the donor, and owns it after the commit.

::

    recipient_service ▶ recv_chunk                   requests, and the reported progress
    transfer ▶ clone                                 receiving a range, up to the complete critical section
    database_receipt ▶ collection_receipt            receiving a moved database
    donor_link                                       requests to the donor
    recipient_state                                  checkpoint and critical section, persisted
"""
