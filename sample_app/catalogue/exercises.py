"""The exercises, and the answers to them."""

from __future__ import annotations

from sample_app.catalogue.things import Exercise, Question

EXERCISES = (
    Exercise(
        "fractions",
        "Halves, thirds, quarters",
        10,
        (
            Question(
                "What is 1/2 + 1/4?",
                ("2/6", "3/4", "1/6"),
                1,
                "A half is two quarters, and one more makes three.",
            ),
            Question(
                "Which is more, 2/3 or 3/5?",
                ("2/3", "3/5", "They are the same"),
                0,
                "In fifteenths they are ten and nine.",
            ),
            Question(
                "What is half of a third?",
                ("1/5", "2/3", "1/6"),
                2,
                "Two of them make the third, so six of them make the whole.",
            ),
        ),
    ),
    Exercise(
        "angles",
        "Angles on a clock face",
        10,
        (
            Question(
                "Which angle do the hands make at three o'clock?",
                ("60°", "90°", "120°"),
                1,
                "Three of the twelve hours are a quarter of the full turn.",
            ),
            Question(
                "How far does the minute hand turn in five minutes?",
                ("5°", "30°", "60°"),
                1,
                "Sixty minutes are 360°, so one minute is 6°.",
            ),
            Question(
                "And which angle do the hands make at half past six?",
                ("0°", "15°", "30°"),
                1,
                "The hour hand has gone half of the way to seven.",
            ),
        ),
    ),
    Exercise(
        "primes",
        "Hunting for primes",
        15,
        (
            Question(
                "Which of these is a prime?",
                ("51", "57", "59"),
                2,
                "51 is 3 times 17, and 57 is 3 times 19.",
            ),
            Question(
                "How many primes are there below 20?",
                ("7", "8", "9"),
                1,
                "2, 3, 5, 7, 11, 13, 17 and 19. One is not among them.",
            ),
            Question(
                "Which prime is the smallest that divides 91?",
                ("3", "7", "13"),
                1,
                "91 is 7 times 13, and the sum of its digits is no multiple of 3.",
            ),
        ),
    ),
    Exercise(
        "moon-phases",
        "Which moon is it tonight?",
        5,
        (
            Question(
                "When does a full moon rise?",
                ("About when the sun sets", "About midnight", "About when the sun rises"),
                0,
                "A full moon stands opposite the sun: it comes when the sun goes.",
            ),
            Question(
                "How long is it from one new moon to the next?",
                ("27.3 days", "29.5 days", "31 days"),
                1,
                "The moon is round in 27.3 days, but the sun has moved on meanwhile.",
            ),
            Question(
                "At which moon can the sun be eclipsed?",
                ("New moon", "Half moon", "Full moon"),
                0,
                "To cover the sun the moon has to stand before it.",
            ),
        ),
    ),
    Exercise(
        "leap-years",
        "When February has 29 days",
        20,
        (
            Question(
                "Which of these years has 366 days?",
                ("1900", "2000", "2100"),
                1,
                "Of the full centuries only those that 400 divides are leap years.",
            ),
            Question(
                "How many leap years are there in 400 years?",
                ("96", "97", "100"),
                1,
                "Every fourth year makes a hundred, and three centuries go without.",
            ),
            Question(
                "Somebody is born on 29 February 2096. When is that date there again?",
                ("2100", "2104", "2108"),
                1,
                "2100 is not a leap year, so it takes eight years.",
            ),
        ),
    ),
)
