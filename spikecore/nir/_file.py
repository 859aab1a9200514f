"""Files of NIR, which may be a stranger's: what is wrong with one is said before anything of it is loaded."""

from __future__ import annotations

import os
from typing import Any, BinaryIO, List, Set, Tuple, Union

from spikecore.nir._package import package

#: Bytes of an array for each byte in the file, at most: gzip, NIR's compression, makes 1032 of one.
_EXPANDED = 1032
#: Groups within groups; a subgraph takes two.
_DEEPEST = 64


def read(path: Union[str, os.PathLike[str]]) -> Any:
    """The graph or node in a file. ValueError for a file of something else, or one with what no file of NIR needs:
    links, data in other files, groups in a circle, arrays larger than the data.
    """
    with open(path, "rb") as file:
        try:
            _check(file)
            return package().read(file, type_check=False)
        except MemoryError:
            raise
        except Exception as error:  # what h5py and nir raise depends on what the file holds
            raise ValueError(f"sc.nir.load: {path} is no file of NIR: {type(error).__name__}: {error}") from error


def _check(file: BinaryIO) -> None:
    import h5py  # nir needs it

    with h5py.File(file, "r") as root:
        seen: Set[int] = set()
        waiting: List[Tuple[str, Any, int]] = [("", root, 0)]
        while waiting:
            place, each, depth = waiting.pop()
            address = h5py.h5o.get_info(each.id).addr
            if address in seen:
                raise ValueError(f"{place!r} is in the file under another name, too")
            seen.add(address)
            if depth > _DEEPEST:
                raise ValueError(f"{place!r} is within more than {_DEEPEST} groups")
            if isinstance(each, h5py.Dataset):
                _check_array(place, each)
            elif isinstance(each, h5py.Group):
                for name in each:
                    # not each.items(), which would follow a link
                    if not isinstance(each.get(name, getlink=True), h5py.HardLink):
                        raise ValueError(f"'{place}/{name}' is a link, maybe to another file")
                    waiting.append((f"{place}/{name}", each[name], depth + 1))


def _check_array(place: str, array: Any) -> None:
    if array.external or array.is_virtual:
        raise ValueError(f"the numbers of {place!r} are in another file")
    stored = array.id.get_storage_size()
    if array.shape is not None and array.nbytes > _EXPANDED * stored:
        raise ValueError(f"{place!r} is said to have the shape {array.shape}, for which the file has {stored} bytes")
