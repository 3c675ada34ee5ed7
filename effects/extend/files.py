"""Files of effects: the storage, its writers, private files.

Names without their own docstring:

    FOLDER    the prefix of the objects that `Storage.check` writes; an orphan search leaves them alone
"""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.kit.files.base import FOLDER as FOLDER
    from effects.kit.files.base import Storage as Storage
    from effects.kit.files.base import StorageFull as StorageFull
    from effects.kit.files.base import Writer as Writer
    from effects.kit.files.local import boot_id as boot_id
    from effects.kit.files.names import attachment as attachment
    from effects.kit.process import create_private as create_private
