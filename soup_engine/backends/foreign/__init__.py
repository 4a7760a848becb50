"""What it takes to put an engine of another project behind the face of ``backends.base``.

::

    ForeignBackend ──► ForeignLoop: a thread with an event loop ──► ForeignEngine (one a project)
         │                  └── OpenRequests: text, latencies, leases, as on our own engine
         └── ForeignAdapters: our registry and our checks, copies for the engine to read
"""
