"""The films, in words."""

from __future__ import annotations

from sample_app.catalogue.things import Part, Video

VIDEOS = (
    Video(
        "sundials",
        "How a sundial tells the time",
        (
            Part(
                "Put a stick into the ground on a sunny morning and mark where its shadow ends. "
                "An hour later mark it again. The shadow has become shorter and has moved, in the "
                "northern half of the world as the hands of a clock do. That is no accident: the "
                "first clocks were built by people who were used to looking at sundials."
            ),
            Part(
                "An upright stick makes a poor clock, for its shadow at nine points elsewhere in "
                "June than in December. So the builders of sundials tilt it until it points at the "
                "pole star. Now it is parallel to the axis of the earth, the sky turns around it "
                "evenly, and each hour has its own line on the dial all the year round."
            ),
            Part(
                "Even so it seldom agrees with your watch. Noon comes four minutes later for each "
                "degree that you travel west, yet a whole country keeps one time. And the earth "
                "runs faster around the sun in January than in July, on a tilted axis, which puts "
                "the dial up to a quarter of an hour out. Good ones have a small table for that."
            ),
        ),
    ),
    Video(
        "tides",
        "Why the sea goes out",
        (
            Part(
                "Twice a day the sea comes up the beach, and twice it goes. The moon does it, by "
                "pulling at the earth. It pulls hardest at the water that is nearest to it, a "
                "little less at the ground below our feet, and least at the water on the far side. "
                "What counts is the difference."
            ),
            Part(
                "So the water is heaped up in two places: below the moon, and opposite. The earth "
                "turns under these two hills of water, and whoever stands on the shore is carried "
                "through both of them in the course of a day. That is why there are two high "
                "tides, and not one."
            ),
            Part(
                "While the earth turns once, the moon moves on, and the shore needs fifty minutes "
                "more to catch up with it. So high tide is fifty minutes later every day. Sailors "
                "knew that long before anybody could say why."
            ),
            Part(
                "The sun pulls as well, not quite half as much. At new moon and at full moon the "
                "two pull along one line, and the sea rises higher and falls lower than usual: "
                "spring tide. At half moon they pull across each other, and the tides are weak. "
                "In a narrow bay the water piles up all the same, in Fundy by sixteen metres."
            ),
        ),
    ),
    Video(
        "seasons",
        "What makes the seasons",
        (
            Part(
                "It is a common mistake to think that summer comes when we are near the sun. The "
                "earth is nearest to it in the first days of January, when the north has its "
                "winter. And while the north shivers, people in Cape Town go to the beach. "
                "Distance cannot explain that."
            ),
            Part(
                "The axis of the earth is tilted, by a bit more than twenty-three degrees, and it "
                "points the same way all the year. In June the north leans towards the sun, in "
                "December away from it. Leaning towards it makes the days longer, and the sun "
                "stands higher at noon."
            ),
            Part(
                "A high sun warms more. Hold a torch straight over a table and its light makes a "
                "small bright circle; hold it at a slant and the same light is spread over a long "
                "pale oval. The ground gets its warmth in just that way, and in winter it gets it "
                "for fewer hours, too."
            ),
            Part(
                "Still, the longest day is seldom the hottest. Land and sea take weeks to warm up, "
                "as a pot does on the stove, so that July and August are warmer than June, and "
                "the cold is worst when the days are already growing."
            ),
        ),
    ),
    Video(
        "calendars",
        "Eleven days that never were",
        (
            Part(
                "In Britain the second of September 1752 was a Wednesday. The next day was a "
                "Thursday, and it was the fourteenth. Nobody had slept for eleven days; they had "
                "been taken out of the calendar by an act of Parliament."
            ),
            Part(
                "The trouble was an old one. Julius Caesar had given the year 365 days and a "
                "quarter, by putting in one day every four years. The true year is eleven minutes "
                "shorter. That is nothing in a lifetime, but it adds up to three days in four "
                "centuries, and by the year 1582 the spring began ten days too early."
            ),
            Part(
                "Pope Gregory had the ten days left out, and three leap days in each four hundred "
                "years from then on. Catholic countries followed at once, the others when they "
                "liked. For a long time a letter could arrive, by its date, before it had been "
                "written."
            ),
            Part(
                "By the time that Britain gave in, the difference had grown to eleven days. Russia "
                "waited until 1918, which is why its October revolution is remembered in "
                "November. And the tax year in Britain still begins on the sixth of April: the "
                "old new year's day in March, moved on by the days that were lost, and one more."
            ),
        ),
    ),
)
