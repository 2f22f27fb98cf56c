"""Groups that PyTorch takes for gloo's and that torch_tutti has made, for PyTorch's own tests: the package's feature."""


def take_the_place_of_gloo():
    import torch_tutti  # pylint: disable=import-outside-toplevel

    torch_tutti.replace_gloo()
