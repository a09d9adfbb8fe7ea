"""Opens a recording as a Python user would and checks what they rely on.

    open_recording.py FILE          h5py, and xarray with both engines
    open_recording.py FILE import   writes a minimal import to FILE
    open_recording.py FILE huge     writes one whose extents are a lie

Exit status 77: a module is missing (the reason is printed)."""
import sys

try:
    import h5py
    import numpy as np
    import xarray as xr
    import h5netcdf, netCDF4
except ImportError as missing:
    print(missing)
    sys.exit(77)

SCALES = {"seq", "pos", "site", "sublayer", "layer", "head", "head_other", "source", "source_other",
          "attn_head", "channel", "query_pos", "key_pos", "piece", "param", "draw"}
TEXT = {"site", "sublayer", "source", "source_other", "param", "vocab/piece"}


def check_h5py(path):
    """Every dataset: texts, plain types, and on each axis one scale of its length."""
    with h5py.File(path, "r") as f:
        def check(name, item):
            if not isinstance(item, h5py.Dataset):
                return
            assert item.attrs["units"] in ("1", "nats", "nats/token"), name
            assert len(item.attrs["long_name"]) > 3, name
            string = h5py.check_string_dtype(item.dtype)
            assert (string is not None) == (name in TEXT), name
            if string is not None:
                assert string.encoding == "utf-8" and string.length is None, name
            else:
                assert item.dtype.kind in "iuf" and item.dtype.name != "bool", name
            if h5py.h5ds.is_scale(item.id):
                assert name in SCALES, name
                return
            for dim in item.dims:
                assert len(dim) == 1, name
                assert dim.keys()[0] in SCALES, (name, dim.keys())
            for extent, dim in zip(item.shape, item.dims):
                assert dim[0].shape == (extent,), name
            axes = [dim.keys()[0] for dim in item.dims]
            assert len(set(axes)) == len(axes), name
            if axes[0] == "seq":
                assert item.maxshape[0] is None, name
        f.visititems(check)
        assert f.attrs["schema"] == "fathom-1"
        return sorted(k for k in f if isinstance(f[k], h5py.Group))


def check_xarray(path, groups):
    with h5py.File(path, "r") as f:
        for engine in ("h5netcdf", "netcdf4"):
            with xr.open_dataset(path, engine=engine) as root:
                assert [str(x) for x in root["site"].values] == list(f["site"].asstr()[()])
                labels = root.load()
            assert labels.attrs["schema"] == "fathom-1"
            for group in groups + [f"{g}/{k}" for g in groups for k in f[g]
                                   if isinstance(f[g][k], h5py.Group)]:
                with xr.open_dataset(path, group=group, engine=engine) as data:
                    for name, item in f[group].items():
                        if not isinstance(item, h5py.Dataset):
                            continue
                        assert data[name].dims == tuple(d.keys()[0] for d in item.dims), name
                        assert data[name].attrs["units"] == item.attrs["units"], name
                        if item.dtype.kind != "O":
                            np.testing.assert_array_equal(data[name].values, item[()])
                    whole = xr.merge([labels, data.load()])
                    if group == "routing":
                        whole["mean"].sel(site="final", source="emb")


def write_import(path, huge):
    rng = np.random.default_rng(1)
    labels = ["L0.attn", "L0.mlp", "final"], ["emb", "L0.attn", "L0.mlp"]
    weights = np.full((2, 5, 3, 2, 3), np.nan, "f4")
    for site in range(3):
        w = rng.exponential(size=(2, 5, 2, site + 1))
        weights[:, :, site, :, : site + 1] = w / w.sum(-1, keepdims=True)
    with h5py.File(path, "w") as f:
        f.attrs["schema"] = "fathom-1"
        f.attrs["residual_mode"] = np.bytes_("full_mh")
        f.attrs["routing_heads"] = 2
        f.attrs["complete"] = True
        for name, values in (("seq", np.arange(2)), ("pos", np.arange(5)), ("site", labels[0]),
                             ("head", np.arange(2)), ("source", labels[1])):
            f[name] = values
            f[name].make_scale(name)
        if huge:
            f.create_dataset("tokens/id", (1 << 30, 1 << 30), "i4", chunks=(1, 1024))
        else:
            f["tokens/id"] = np.array([[1, 2, 3, 4, 5], [6, 7, 8, -1, -1]], "i4")
        f["routing/weights"] = weights
    np.savetxt(path + ".mean", np.array([weights[0].mean(0), weights[1, :3].mean(0)]).ravel())


if __name__ == "__main__":
    if len(sys.argv) > 2:
        write_import(sys.argv[1], sys.argv[2] == "huge")
    else:
        check_xarray(sys.argv[1], check_h5py(sys.argv[1]))
