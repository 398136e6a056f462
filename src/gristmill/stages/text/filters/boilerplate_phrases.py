"""The phrases by which boilerplate is known: legal notices, cookie banners, filler text.

The short ones come from the clean-up of C4 (Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a
Unified Text-to-Text Transformer"); the long ones are the texts of cookie banners that stand on very many sites.
A banner that holds a shorter phrase of the list is not repeated.
"""

from __future__ import annotations

POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)

BOILERPLATE_PHRASES = (
    *POLICY_PHRASES,
    "privacy overview",
    "privacy & cookies policy",
    "privacy and cookies policy",
    (
        "necessary cookies are absolutely essential for the website to function properly. this category only includes "
        "cookies that ensures basic functionalities and security features of the website. these cookies do not store "
        "any personal information."
    ),
    (
        "any cookies that may not be particularly necessary for the website to function and is used specifically to "
        "collect user personal data via analytics, ads, other embedded contents are termed as non-necessary cookies. "
        "it is mandatory to procure user consent prior to running these cookies on your website."
    ),
    "if you continue to browse this site without changing your cookie settings, you agree to this use. acceptread more",
)

PLACEHOLDER_PHRASES = ("lorem ipsum",)
