"""Secrets in texts: providers' keys and named passwords are masked, and words that only name them are not."""

from __future__ import annotations

import random
import string

import pytest

from graph_agent.base._internal.secrets import mask_named_secrets, mask_secrets

ALPHANUMERIC, UPPER = string.ascii_letters + string.digits, string.ascii_uppercase + string.digits


def made(length: int, of: str = ALPHANUMERIC) -> str:
    """Random characters, of which the fourth is a digit, the same in each process."""
    chosen = "".join(random.Random(length).choices(of, k=length))
    return f"{chosen[:3]}7{chosen[4:]}"


SHAPES = (
    *(f"sk-{made(48)}", f"sk-proj-{made(60)}", f"sk-ant-api03-{made(80)}", f"sk-or-v1-{made(64)}", f"gsk_{made(52)}"),
    *(
        f"xai-{made(80)}",
        f"hf_{made(34)}",
        f"r8_{made(37)}",
        f"pplx-{made(48)}",
        f"csk-{made(48)}",
        f"nvapi-{made(64)}",
    ),
    *(f"tgp_v1_{made(43)}", f"lsv2_pt_{made(32)}_{made(10)}", f"jina_{made(60)}", f"tvly-{made(32)}", f"fw_{made(24)}"),
    *(f"pcsk_{made(60)}", f"dapi{made(32, '0123456789abcdef')}", f"AIza{made(35)}", f"ya29.{made(60)}"),
    *(f"GOCSPX-{made(28)}", f"AKIA{made(16, UPPER)}", f"ASIA{made(16, UPPER)}", f"ABIA{made(16, UPPER)}"),
    *(f"{kind}_{made(36)}" for kind in ("ghp", "gho", "ghu", "ghs", "ghr")),
    *(f"github_pat_{made(22)}_{made(59)}", f"glpat-{made(20)}", f"gldt-{made(20)}", f"glrt-{made(20)}"),
    *(f"glcbt-{made(20)}", f"glptt-{made(40)}", f"npm_{made(36)}", f"pypi-AgEIcHlwaS5vcmc{made(60)}"),
    *(f"dckr_pat_{made(27)}", f"rubygems_{made(48)}", f"dop_v1_{made(64)}", f"doo_v1_{made(64)}", f"dor_v1_{made(64)}"),
    *(f"{kind}_{made(32)}" for kind in ("shpat", "shpca", "shppa", "shpss")),
    *(f"hvs.{made(24)}", f"hvb.{made(24)}", f"xoxb-{made(12)}-{made(24)}", f"xoxp-{made(50)}", f"xapp-1-{made(40)}"),
    *(f"sk_live_{made(24)}", f"rk_live_{made(24)}", f"whsec_{made(32)}", f"SG.{made(22)}.{made(43)}"),
    *(f"dp.pt.{made(43)}", f"glsa_{made(32)}_{made(8)}", f"NRAK-{made(27, UPPER)}", f"pscale_tkn_{made(43)}"),
    *(f"sntrys_{made(60)}", f"sbp_{made(40)}", f"lin_api_{made(40)}", f"ntn_{made(46)}", f"figd_{made(40)}"),
    *(f"ATATT3x{made(60)}", f"ATBB{made(32)}", f"PMAK-{made(24)}-{made(34)}", f"sq0atp-{made(22)}", f"LTAI{made(20)}"),
    *(f"AGE-SECRET-KEY-1{made(58, UPPER)}", f"eyJ{made(30)}.{made(40)}.{made(40)}", f"123456789:AA{made(33)}"),
    f"hooks.slack.com/services/T{made(8, UPPER)}/B{made(9, UPPER)}/{made(24)}",
)
NAMES = (
    *("AWS_SECRET_ACCESS_KEY=", "aws_secret_access_key = ", "SecretAccessKey: ", "AccountKey=", "SharedAccessKey="),
    *(
        "OPENAI_API_KEY=",
        "api key: ",
        '"client_secret": "',
        "DATABASE_PASSWORD=",
        "password: ",
        "passphrase=",
        "PASSWD=",
    ),
    *("Passwort: ", "kennwort=", "contraseña: ", "mot de passe: ", "senha=", "wachtwoord: ", "lösenord: ", "hasło: "),
    *(
        "пароль: ",
        "密码: ",
        "パスワード=",
        "비밀번호: ",
        "parola=",
        "şifre: ",
        "&sig=",
        "access_token=",
        "Bearer ",
        "MYSQL_PWD=",
    ),
)
ADVICE = (
    "Set XAI_API_KEY or HF_TOKEN in the environment.",
    "pip install scikit-learn hf_transfer; see hf_hub",
    "The secret of a good answer: patience.",
    "max_tokens: 4096, key figures, a password is needed, and basic tokens: none",
    "glue_ and ghost_writer, npm run build, shop.example.org",
)


FORMS = ("{}", "got {}, sorry", '{{"a": "{}"}}', "a={};b", "https://x.org/{}?q")


@pytest.mark.parametrize("secret", SHAPES, ids=lambda secret: secret[:8])
def test_a_key_of_a_known_form_is_masked(secret: str) -> None:
    masked = [mask_secrets(form.format(secret)) for form in FORMS]

    assert [(secret[-8:] in text, secret[12:30] in text, "***" in text) for text in masked] == [
        (False, False, True)
    ] * 5


@pytest.mark.parametrize("name", NAMES)
def test_a_named_secret_is_masked_and_its_name_is_kept(name: str) -> None:
    text = f"failed with {name}Zx7-Yq9wLm and more"

    shown = mask_named_secrets(text)

    assert shown == mask_secrets(text) == f"failed with {name}*** and more"


@pytest.mark.parametrize("text", ADVICE)
def test_words_that_only_name_secrets_are_kept(text: str) -> None:
    assert mask_secrets(text) == text


def test_a_private_key_is_masked() -> None:
    lines = f"{made(64)}\n{made(60)}"

    masked = mask_secrets(
        f"read -----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----, then - it failed"
    )

    assert masked == "read -----BEGIN RSA PRIVATE KEY-----***, then - it failed"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["", *NAMES, 'token": "api_key='])
def test_a_masked_text_is_not_changed_again(name: str) -> None:
    masked = [
        mask_secrets(form.format(f"{name}{secret}")) for secret in (*SHAPES, "s3!@host", "a b=c") for form in FORMS
    ]

    assert [mask_secrets(text) for text in masked] == masked
