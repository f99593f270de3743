"""The studio: a local web page with controls over a scenario, which simulates every change.

``states`` describes states of the page, ``answers`` its content (by the code of ``show.report``), ``kept`` caches
results for all parts of it, ``pool`` has the processes that simulate, ``server`` serves. The ``controls`` are a
package.
"""
