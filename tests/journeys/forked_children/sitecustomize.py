"""Python imports this module when it starts with this folder in PYTHONPATH.

The children of that process are then forks of templates.
"""

from tests.templates import use_templates

use_templates()
