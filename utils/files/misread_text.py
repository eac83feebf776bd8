"""Find text in GB2312 that was read as UTF-8: two bytes of a Chinese character may be a letter."""

import unicodedata


def as_gb2312(name: str) -> str:
    """Return the Chinese name with the bytes of `name`, "" if there is none or `name` is a word.

    Words are of letters of one script, Latin ones with ASCII letters among them.

    >>> as_gb2312("è"), as_gb2312("ͼƬ")
    ('猫', '图片')
    >>> as_gb2312("Käfer"), as_gb2312("лодка"), as_gb2312("cat")
    ('', '', '')
    """
    letters = [letter for letter in name if not letter.isascii()]
    try:
        meant = name.encode().decode("gb2312")
    except UnicodeError:
        return ""
    if not letters or not all(letter.isalpha() for letter in meant if not letter.isascii()):
        return ""

    scripts = {unicodedata.name(letter, "").partition(" ")[0] for letter in letters}
    has_ascii = any(letter.isascii() and letter.isalpha() for letter in name)
    is_latin = scripts == {"LATIN"}
    is_word = has_ascii if is_latin else len(scripts) == 1 and len(letters) > 1
    return "" if is_word else meant
