"""The studio: a local web page with controls over a scenario, which simulates after every change.

``studio_state`` describes states of the page, ``page_parts`` its content (by the code of ``interactive.report``),
``result_cache`` caches results for all parts of it, ``worker_pool`` has the processes that simulate, ``server`` serves.
The ``controls`` are a package.
"""
