"""The capsule explorer: a web page to draw on, that shows how capsules vote, agree and are routed.

network.py      what is shown: models, class names, master coefficients, sample images
exposed.py      a network that also gives the votes for its class capsules
engine.py       what it answers, as plain arrays: images and poses from bytes, and to the page
batching.py     questions that come at the same time, answered together
server.py       the web application, its limits in size and time, and the address it listens on
static_site.py  the same page without a server: weights as ONNX, run by the browser
static/         the page: HTML, CSS and JavaScript, nothing of it from elsewhere
"""
