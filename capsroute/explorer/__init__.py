"""The capsule explorer: a local web page to draw on, that shows what the capsules of a network make of it.

exhibit.py    what is shown: a model, its fast twin, class names, sample images
engine.py     the questions the page asks of it: predict, reconstruct, route
pictures.py   images in and out: what a browser sends, uploaded files, drawings made to look like MNIST
server.py     the web application, its limits, and the address it listens on
static/       the page: HTML, CSS and JavaScript, nothing of it from elsewhere
"""
