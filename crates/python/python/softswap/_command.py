"""Finds the command that pip has installed; the library is next to it, in lib/softswap."""
import os
import sys
import sysconfig


def command():
    """Returns the path of the command `softswap` of this package."""
    places = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    # `pip install --target` creates `bin` next to the modules.
    target = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    places.append(os.path.join(target, "bin"))
    for place in places:
        path = os.path.join(place, "softswap")
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise FileNotFoundError(
        "the command softswap is in none of " + ", ".join(places)
        + f"; install it anew with {sys.executable} -m pip install --force-reinstall softswap"
    )
