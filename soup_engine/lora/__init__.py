"""Low-rank adapters on the rows of a batch: their arithmetic, and which of them are resident.

``host_adapter`` lays an adapter out in host memory, away from the engine's thread. ``residency``
gives the adapters that are about to run a slot each. ``rows`` says which token of a step wears
which slot, and ``sites`` are the places of the model where that changes the result. Nothing here
knows a model; ``model.adapter_sites`` brings the two together.
"""
