"""Makes groups with torch_tutti that PyTorch treats as gloo's, for PyTorch's own tests, by the package's feature."""


def take_the_place_of_gloo():
    import torch_tutti  # pylint: disable=import-outside-toplevel

    torch_tutti.replace_gloo()
