"""The shop as a WSGI application; it serves its static files itself, so that any server will do."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

application = StaticFilesHandler(get_wsgi_application())
