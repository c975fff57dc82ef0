"""``python -m ws_responses bench``: what the middleware costs, as ratios to what it is built on.

Each measure runs beside its floor, in rounds that alternate between both, on the same machine in the same minutes: only
ratios are judged. Needs the packages of the ``dev`` extra: uvicorn with uvloop, httptools and websockets, picows, psutil; and
FastAPI and matplotlib for what is measured or drawn with them.
"""
