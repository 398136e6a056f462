"""The terms by which `AdultUrlFilter` recognises adult sites. Contains vulgar language.

Sequences must be unambiguous even across separators (not `sexvideo`: Essex has videos too). Words must be unambiguous
by themselves. Soft words are suspicious only in combination; they do not include names of groups of people or medical
terms.
"""

from __future__ import annotations

SEQUENCES = tuple(
    """
    amateurporn animeporn asianporn bangbros boysporn brazzers camwhore cartoonporn celebporn chaturbate cumshot
    ebonyporn eporner faphouse femdomporn freeporn freesexcam gayporn girlsporn hardcoresex hdporn hentai2read
    hentaihaven homeporn hotmilf indianporn japaneseporn javhd lesbianporn livejasmin milfporn mobileporn myfreecams
    naughtyamerica nhentai pornclip porndig pornflix porngif pornhd pornhub pornhut pornimage pornmd pornmovie pornpic
    pornsite pornstar porntrex porntube pornvideo slutload spankbang spankwire sunporno teenporn tnaflix upornia
    videosporno xhamster xnxx xvideos xxxmovie xxxtube xxxvideo youjizz youporn
    """.split()  # noqa: SIM905
)
"""Found anywhere, including inside words and across separators."""

WORDS = tuple(
    """
    bdsm blowjob blowjobs bukkake camgirl camgirls camsex creampie cuckold cumshots deepthroat ecchi femdom fisting
    footjob futanari gangbangs handjob handjobs hentai milf milfs orgies porn porno pornografia pornographic pornos
    pr0n redtube rimjob sexcam sexcams sexchat sexshop sextube sexvideo sexvideos shemale shemales stripchat strapon
    titfuck titjob upskirt xxx порно エロ 色情 情色
    """.split()  # noqa: SIM905
)
"""Found as whole words."""

SOFT_WORDS = tuple(
    """
    adult amateur anal ass babe babes bareback bitch bitches bondage boob boobs boobies booty busty butt cam cams cock
    cocks cum dick dicks dildo dildos dominatrix erotic erotica erotik escort escorts explicit fetish fuck fucked
    fucking fucks gangbang hardcore hooker hookers hookup horny incest jav jizz kinky masturbate naked nasty naughty
    nsfw nude nudes nudist nudity orgy panties playboy prostitute pussies pussy sensual sex sexe sexo sexy slut sluts
    smut softcore spank squirting strip stripper strippers swinger swingers tease teen threesome tit tits topless tranny
    twink uncensored voyeur wank webcam webcams whore whores секс
    """.split()  # noqa: SIM905
)
"""Found as whole words; several different ones mark a URL as adult."""
