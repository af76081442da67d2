"""The configuration of pip, as variables of uv; that uv installs with them is seen in `.ci/run`."""

from __future__ import annotations

from scripts.uv_settings import variables


def test_options_of_pip_become_variables_of_uv_and_the_environment_overrides_files() -> None:
    listed = "\n".join(
        [
            ":env:.find-links='/wheels\\n/more'",
            ":env:.index-url='https://pypi.example/of-the-environment'",
            "global.constraint='/etc/constraints.txt'",
            "global.extra-index-url='file:///a https://b.example/simple'",
            "global.index-url='https://pypi.example/of-a-file'",
            "install.timeout='180'",
            "freeze.timeout='1'",
            "global.quiet='1'",
        ]
    )

    assert variables(listed) == {
        "UV_CONSTRAINT": "/etc/constraints.txt",
        "UV_DEFAULT_INDEX": "https://pypi.example/of-the-environment",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_HTTP_TIMEOUT": "180",
        "UV_INDEX": "file:///a https://b.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_without_configuration_uv_selects_versions_as_pip_does() -> None:
    assert variables("") == {"UV_INDEX_STRATEGY": "unsafe-best-match"}
