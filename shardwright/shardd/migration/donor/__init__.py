"""The donor's side of a migration: it serves the documents, and drives, commits and completes the migration.

::

    donor_service ▶ move_range, migration            a request, and the steps of its migration
    migration ▶ donor_state, commit                  its state and link to the recipient; critical section and outcome
    clone_source, database_source                    the data to pull: of a range, or of a moved database
      ▶ range_documents                              reading the documents of a range
      ▶ oplog_follower ▶ oplog_entries               their changes
"""
