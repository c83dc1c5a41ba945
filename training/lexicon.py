# ruff: noqa: E501
"""Owns the words that quire-tiny's training text is made of: product words, shops, voice-bot phrases.

Everything here was written for this project; brand names are invented. How the words become
examples is in `data.py`.

Phrase templates use `{a|b}` for a choice, `[a]` for an optional part and `<slot>` for a value.
"""

from __future__ import annotations


def words(text: str) -> list[str]:
    """Split a comma-separated list that may run over several lines."""
    return [" ".join(part.split()) for part in text.split(",") if part.strip()]


COLOURS = words("""
red, blue, green, yellow, black, white, grey, brown, orange, purple, pink, beige, navy, teal,
turquoise, maroon, burgundy, olive, khaki, cream, ivory, charcoal, silver, golden, bronze, copper,
crimson, scarlet, lavender, lilac, violet, magenta, mustard, peach, coral, mint, emerald, indigo,
cyan, tan, rust, plum, aqua, multicolour, transparent, pastel, dark blue, light blue, dark green,
light grey, sky blue, rose gold""")
MATERIALS = words("""
cotton, linen, wool, silk, velvet, leather, suede, denim, polyester, nylon, fleece, cashmere,
merino, satin, canvas, corduroy, bamboo, oak, walnut, pine, birch, mahogany, beech, plywood,
rattan, wicker, marble, granite, ceramic, porcelain, stoneware, glass, crystal, stainless steel,
cast iron, aluminium, titanium, brass, chrome, plastic, rubber, silicone, latex, concrete, clay,
terracotta, cork, felt, jute, hemp, mesh, microfibre, acrylic, carbon fibre, recycled paper,
cardboard, enamel, faux fur, sheepskin, tweed, flannel""")
AUDIENCES = words("""
men, women, kids, boys, girls, babies, toddlers, teenagers, adults, seniors, beginners,
professionals, students, teachers, nurses, travellers, gardeners, runners, cyclists, dogs, cats,
puppies, kittens, rabbits, couples, grandparents, commuters, artists, musicians, left handed people,
tall people""")
PLACES = words("""
bedroom, bathroom, kitchen, living room, dining room, hallway, garage, basement, attic, balcony,
terrace, patio, garden, office, classroom, nursery, playroom, laundry room, workshop, greenhouse,
caravan, boat, restaurant, hotel, dorm room, small apartment, porch, staircase, closet, pantry""")
OCCASIONS = words("""
wedding, birthday, christmas, easter, halloween, graduation, anniversary, baby shower, picnic,
barbecue, camping, hiking, fishing, swimming, cycling, running, climbing, sailing, skiing,
snowboarding, skating, yoga, pilates, boxing, football, basketball, volleyball, tennis, badminton,
golf, hockey, cricket, rugby, baseball, rowing, surfing, diving, kayaking, dancing, travel,
work, school, university, winter, summer, autumn, spring, rainy days, hot weather, home use,
outdoor use, everyday use, weekend trips, long flights, night driving, sensitive skin, dry hair,
flat feet, back pain, gift wrapping, housewarming, retirement, holidays, festivals, gardening,
decorating, cleaning, baking, grilling, painting, knitting, sewing, streaming, gaming, studying""")
FEATURES = words("""
pockets, hood, zipper, buttons, straps, handle, handles, wheels, lid, drawers, shelves, mirror,
lights, remote control, timer, battery, charger, cable, microphone, speakers, screen, keyboard,
camera, sensor, thermostat, filter, pump, stand, case, cover, lining, cushion, armrest, headrest,
footrest, storage, compartments, divider, lock, hooks, magnets, suction cups, long sleeves,
short sleeves, removable lining, adjustable strap, non slip base, wireless charging, noise reduction,
touch screen, warm lining, carry bag, spare parts, free delivery, warranty, instructions, batteries,
temperature control, built in scale, soft cushions""")
GENERAL_ATTRS = words("""
cheap, affordable, luxury, premium, modern, vintage, classic, rustic, minimalist, industrial,
traditional, small, large, medium, tiny, huge, compact, portable, foldable, adjustable, lightweight,
heavy duty, waterproof, durable, handmade, personalised, organic, sustainable, recyclable, reusable,
electric, automatic, manual, wireless, rechargeable, cordless, solar, smart, digital, professional,
replacement, second hand, refurbished, decorative, elegant, stylish, comfortable, soft, sturdy,
slim, wide, narrow, long, short, tall, round, square, rectangular, oval, oversized, travel size,
family size, discounted, limited edition, best selling, scandinavian, japanese, italian, french""")
LEADS = words("""
best, cheapest, buy, buy cheap, where to buy, reviews of, compare, order, shop for, find, show me,
looking for, price of, best rated, top ten, how to choose, how to clean, ideas for, discount on""")
TAILS = words("""
near me, on sale, online, free shipping, next day delivery, with warranty, reviews, in stock,
under warranty, price comparison, gift ideas, clearance, special offer, buying guide, size chart,
discount code, for rent, in bulk, second hand, delivered today""")

# category -> (nouns in the singular or a plural-only form marked *, words that describe them)
CATEGORIES: dict[str, tuple[list[str], list[str]]] = {
    "clothing": (
        words("""shirt, blouse, sweater, cardigan, hoodie, jacket, coat, raincoat, blazer,
            waistcoat, dress, skirt, jeans*, trousers*, shorts*, leggings*, tights*, pyjamas*,
            bathrobe, swimsuit, bikini, scarf, mittens*, gloves*, beanie, baseball cap, sun hat,
            belt, tie, bow tie, socks*, underwear*, nightgown, apron, overalls*, jumpsuit, kimono,
            poncho, tank top, polo shirt, turtleneck, tracksuit, uniform, suspenders*, cufflinks*,
            handkerchief, earmuffs*, dungarees*, tunic, parka, anorak, vest"""),
        words("""striped, checked, floral, sleeveless, hooded, padded, knitted, embroidered,
            pleated, stretch, thermal, fitted, loose, cropped, high waisted, double breasted,
            polka dot, tie dye, reversible, windproof, breathable, formal, casual, maternity"""),
    ),
    "footwear": (
        words("""running shoes*, trainers*, sneakers*, boots*, hiking boots*, ankle boots*,
            rain boots*, sandals*, slippers*, loafers*, high heels*, ballet flats*, flip flops*,
            clogs*, moccasins*, football boots*, snow boots*, dance shoes*, shoelaces*, insoles*,
            shoe rack, shoe polish*, espadrilles*, wellingtons*"""),
        words("""cushioned, orthopaedic, slip on, lace up, steel toe, barefoot, open toe, fur lined,
            wide fit, insulated, vegan, platform, memory foam"""),
    ),
    "bags": (
        words("""backpack, rucksack, handbag, shoulder bag, suitcase, duffel bag, wallet, purse,
            briefcase, laptop bag, tote bag, messenger bag, lunch box, cosmetic bag, clutch,
            toiletry bag, garment bag, luggage tag, passport holder, bum bag, satchel, drawstring bag,
            cabin trolley, key ring, umbrella"""),
        words("""quilted, expandable, hard shell, anti theft, rolling, lockable, carry on,
            fold away, crossbody, monogrammed"""),
    ),
    "furniture": (
        words("""sofa, couch, armchair, recliner, coffee table, dining table, side table, desk,
            bookcase, bookshelf, wardrobe, dresser, nightstand, bed frame, bunk bed, mattress,
            headboard, ottoman, bar stool, bench, rocking chair, office chair, dining chair,
            highchair, filing cabinet, display cabinet, sideboard, futon, hammock, stool, crib,
            changing table, television stand, coat rack, room divider, folding table, sofa bed,
            bean bag, chaise longue, vanity table, kitchen island, wine rack"""),
        words("""upholstered, extendable, corner, height adjustable, ergonomic, swivel, stackable,
            wall mounted, reclining, two seater, three seater, king size, queen size, orthopedic"""),
    ),
    "bedding": (
        words("""duvet, duvet cover, pillow, pillowcase, blanket, quilt, bed sheet, fitted sheet,
            mattress topper, weighted blanket, bedspread, throw, sleeping bag, eye mask, cushion,
            electric blanket, hot water bottle, bolster, sheet set, towel, bath towel, beach towel,
            bath mat, shower curtain, tablecloth, napkin, curtain, blind, rug, doormat, carpet"""),
        words("""hypoallergenic, feather, goose down, cooling, fluffy, machine washable, blackout,
            quick drying, crease resistant, woven, tufted, fringed, tasselled, anti allergy"""),
    ),
    "kitchen": (
        words("""frying pan, saucepan, wok, casserole, baking tray, muffin tin, rolling pin,
            mixing bowl, measuring cup, measuring spoons*, cutting board, chopping board, kitchen knife,
            bread knife, peeler, grater, whisk, spatula, ladle, tongs*, colander, sieve, can opener,
            corkscrew, bottle opener, garlic press, kettle, teapot, coffee maker, espresso machine,
            french press, toaster, blender, food processor, hand mixer, stand mixer, slow cooker,
            rice cooker, pressure cooker, air fryer, waffle maker, microwave, dishwasher, oven,
            refrigerator, freezer, cutlery set, dinner plate, soup bowl, salad bowl, mug, teacup,
            wine glass, water bottle, thermos, lunchbox, spice rack, dish rack, kitchen scale,
            pepper mill, butter dish, cake stand, cookie cutter, ice cube tray, egg timer, oven glove,
            tea towel, juicer, mortar, strainer, pizza stone, fondue set, popcorn machine"""),
        words("""non stick, dishwasher safe, induction, oven safe, airtight, insulated, programmable,
            stackable, double walled, enamelled, built in, energy saving, countertop, serrated,
            heat resistant, leakproof"""),
    ),
    "electronics": (
        words("""laptop, tablet, smartphone, headphones*, earbuds*, loudspeaker, soundbar, television,
            monitor, printer, scanner, projector, keyboard, computer mouse, webcam, microphone, router,
            modem, hard drive, memory card, flash drive, power bank, phone charger, charging cable,
            phone case, screen protector, smartwatch, fitness tracker, drone, camera, tripod,
            camera lens, radio, alarm clock, record player, game console, joystick, calculator,
            extension lead, adapter, battery charger, graphics card, motherboard, processor, e reader,
            security camera, doorbell, baby monitor, walkie talkie, turntable, amplifier, ink cartridge,
            toner, docking station, network switch, solar panel"""),
        words("""bluetooth, noise cancelling, ultra wide, curved, mechanical, backlit, high resolution,
            unlocked, fast charging, multifunction, wired, over ear, waterproof, gaming, built in,
            shockproof, handheld, dual band"""),
    ),
    "lighting": (
        words("""floor lamp, table lamp, desk lamp, ceiling light, chandelier, pendant light,
            wall light, light bulb, string lights*, fairy lights*, lampshade, night light, spotlight,
            torch, lantern, candle, candle holder, tea lights*, headlamp, bike light, dimmer switch,
            flashlight, garden lights*, lava lamp"""),
        words("""dimmable, energy efficient, warm white, motion sensor, scented, hanging, halogen,
            flickering, battery operated, clip on"""),
    ),
    "garden": (
        words("""lawn mower, hedge trimmer, leaf blower, chainsaw, shovel, spade, rake, wheelbarrow,
            garden hose, sprinkler, watering can, flower pot, planter, seeds*, fertiliser*, compost bin,
            garden gloves*, pruning shears*, garden bench, parasol, gazebo, pergola, trellis, fence,
            bird feeder, bird bath, fire pit, barbecue grill, garden gnome, hanging basket, greenhouse,
            pressure washer, trampoline, swing, sandpit, paddling pool, deck chair, sun lounger,
            rain barrel, weed killer*, potting soil*, garden shed, fountain, tomato plant, rose bush,
            apple tree, herb kit, lavender plant, orchid, cactus, succulent"""),
        words("""petrol, robotic, telescopic, weatherproof, frost resistant, climbing, self watering,
            freestanding, galvanised, evergreen, flowering, biodegradable"""),
    ),
    "tools": (
        words("""hammer, screwdriver, drill, spanner, wrench, pliers*, saw, hacksaw, jigsaw, sander,
            chisel, tape measure, spirit level, toolbox, ladder, step ladder, nails*, screws*, bolts*,
            washers*, glue*, duct tape*, sandpaper*, paint brush, paint roller, paint*, primer, varnish*,
            wallpaper*, stapler, glue gun, soldering iron, multimeter, workbench, vice, crowbar, axe,
            utility knife, safety goggles*, ear protectors*, dust mask, work gloves*, hard hat, padlock,
            door handle, hinge, hook, bracket, tap, shower head, sink, bathtub, toilet seat, plunger,
            radiator, smoke alarm, fire extinguisher, fuse, socket set, wood filler*, tile cutter"""),
        words("""magnetic, ratchet, hydraulic, pneumatic, impact, precision, galvanised, rust proof,
            self adhesive, quick release, extendable, insulated, double sided, water based"""),
    ),
    "sports": (
        words("""bicycle, mountain bike, road bike, bike helmet, bike lock, bike pump, tennis racket,
            football, basketball, volleyball, golf clubs*, golf ball, hockey stick, cricket bat,
            baseball glove, boxing gloves*, punching bag, dumbbells*, kettlebell, barbell, yoga mat,
            exercise ball, resistance bands*, skipping rope, treadmill, exercise bike, rowing machine,
            skateboard, scooter, roller skates*, ice skates*, snowboard, skis*, ski goggles*, sledge,
            surfboard, wetsuit, snorkel, swimming goggles*, kayak, paddle, life jacket, tent, camping stove,
            fishing rod, climbing rope, compass, binoculars*, dartboard, darts*, table tennis bat,
            shin pads*, knee brace, foam roller, whistle, stopwatch, hiking poles*, bow, arrow,
            saddle, horse blanket, gym bag"""),
        words("""inflatable, anti fog, shock absorbing, full suspension, junior, competition, padded,
            two person, four person, ultralight, tubeless, magnetic, folding, aerodynamic"""),
    ),
    "toys": (
        words("""teddy bear, doll, dollhouse, building blocks*, jigsaw puzzle, board game, card game,
            chess set, toy car, train set, remote control car, kite, yo yo, spinning top, play dough*,
            colouring book, crayons*, finger paint*, toy kitchen, rocking horse, tricycle, balance bike,
            water pistol, bubble machine, action figure, puppet, stuffed animal, marbles*, dominoes*,
            playing cards*, dice*, model airplane, slime kit, science kit, music box, toy drum,
            activity table, sorting game, play tent, ball pit, magic set, costume, face paint*"""),
        words("""educational, wooden, cuddly, interactive, washable, musical, glow in the dark,
            cooperative, giant, miniature, talking, collectible, two player"""),
    ),
    "baby": (
        words("""stroller, pram, car seat, baby carrier, nappies*, baby wipes*, pacifier, baby bottle,
            bottle warmer, steriliser, bib, romper, bodysuit, baby blanket, cot, cot mattress, playpen,
            baby gate, teething ring, rattle, baby bath, potty, breast pump, baby food*, sleepsuit,
            swaddle, mobile, walker, booster seat, diaper bag, nursing pillow"""),
        words("""newborn, fragrance free, washable, reclining, rear facing, newborn size, unisex,
            anti colic, double, hooded"""),
    ),
    "beauty": (
        words("""shampoo*, conditioner*, hair dryer, hair straightener, curling iron, hairbrush, comb,
            hair clip, hair dye*, hair gel*, shower gel*, soap*, body lotion*, hand cream*, face cream*,
            sunscreen*, lip balm*, lipstick, mascara*, eyeliner, eyeshadow, foundation*, concealer, blusher,
            nail polish*, nail file, nail clippers*, tweezers*, perfume*, aftershave*, deodorant,
            razor, shaving cream*, electric shaver, beard trimmer, toothbrush, toothpaste*, dental floss*,
            mouthwash*, cotton pads*, face mask, makeup brush, makeup remover*, bath bomb, essential oil,
            moisturiser, cleanser, serum, massage gun, loofah, hand mirror, wig, false eyelashes*"""),
        words("""moisturising, anti ageing, fragrance free, hypoallergenic, vitamin, herbal, matte,
            glossy, long lasting, cruelty free, volumising, exfoliating, tinted, whitening, ionic"""),
    ),
    "health": (
        words("""thermometer, blood pressure monitor, first aid kit, bandage, plasters*, painkillers*,
            vitamins*, cough syrup*, throat lozenges*, nasal spray, eye drops*, allergy tablets*,
            antiseptic cream*, wheelchair, crutches*, walking stick, hearing aid, reading glasses*,
            sunglasses*, contact lenses*, pill organiser, heating pad, ice pack, compression socks*,
            bathroom scale, humidifier, air purifier, massage chair, insect repellent*, hand sanitiser*,
            protein powder*, magnesium tablets*, posture corrector, ankle support, sleep spray"""),
        words("""prescription, effervescent, sugar free, natural, digital, disposable, sterile,
            high strength, fast acting, polarised, anti bacterial"""),
    ),
    "food": (
        words("""bread*, butter*, cheese*, milk*, yoghurt*, cream cheese*, eggs*, bacon*, ham*, sausages*,
            chicken breast*, minced beef*, salmon*, tuna*, shrimp*, rice*, pasta*, spaghetti*, noodles*, flour*,
            sugar*, salt*, pepper*, cinnamon*, vanilla extract*, honey*, jam*, peanut butter*, chocolate*,
            biscuits*, cookies*, crackers*, crisps*, popcorn*, nuts*, almonds*, cashews*, walnuts*, raisins*,
            dried apricots*, apples*, bananas*, oranges*, lemons*, grapes*, strawberries*, raspberries*,
            blueberries*, pineapple*, mango*, avocado*, tomatoes*, potatoes*, onions*, garlic*, carrots*,
            broccoli*, cauliflower*, spinach*, lettuce*, cucumber*, mushrooms*, lentils*, chickpeas*, beans*,
            olive oil*, vinegar*, mayonnaise*, ketchup*, soy sauce*, tomato sauce*, pickles*, olives*,
            coffee beans*, tea bags*, orange juice*, lemonade*, mineral water*, oat milk*, breakfast cereal*,
            porridge*, granola*, pancake mix*, pizza*, lasagne*, soup*, salad*, ice cream*, cheesecake*,
            croissants*, doughnuts*, pretzels*, tofu*, hummus*, maple syrup*, baking powder*, yeast*, gelatine*"""),
        words("""gluten free, dairy free, wholegrain, unsalted, roasted, smoked, frozen, fresh, spicy,
            sweet, salted, low fat, sugar free, vegetarian, vegan, free range, homemade, tinned, dried,
            crunchy, sliced, fair trade, decaffeinated, sparkling, crushed, marinated"""),
    ),
    "pets": (
        words("""dog food*, cat food*, dog lead, dog collar, dog bed, dog crate, dog toy, chew toy,
            cat litter*, litter box, scratching post, cat tree, cat carrier, fish tank, aquarium filter,
            fish food*, bird cage, bird seed*, hamster cage, hamster wheel, rabbit hutch, pet brush,
            flea treatment*, pet bowl, water fountain, dog harness, muzzle, dog coat, cat flap,
            training treats*, horse feed*, reptile lamp, terrarium, poop bags*"""),
        words("""grain free, reflective, retractable, self cleaning, washable, orthopaedic, chew proof,
            interactive, odour free, squeaky, elevated"""),
    ),
    "stationery": (
        words("""notebook, diary, planner, calendar, ballpoint pen, fountain pen, pencil, pencil case,
            eraser, sharpener, highlighter, marker, ruler, scissors*, stapler, paper clips*, sticky notes*,
            envelope, stamp, printer paper*, folder, ring binder, hole punch, whiteboard, chalk*, sketchbook,
            watercolours*, oil paint*, easel, paintbrush, canvas board, knitting needles*, yarn*, sewing machine,
            thread*, fabric*, buttons*, ribbon, wrapping paper*, greeting card, gift bag, photo frame,
            photo album, poster, globe, world map, dictionary, cookbook, novel, comic book, textbook,
            magazine, bookmark, desk organiser, paper shredder, laminator, label maker, guitar, violin,
            piano, flute, trumpet, saxophone, drum kit, ukulele, harmonica, music stand, guitar strings*"""),
        words("""lined, dotted, spiral bound, leather bound, refillable, fine liner, self adhesive,
            acid free, hardback, paperback, illustrated, acoustic, permanent, erasable, magnetic,
            recycled"""),
    ),
    "cleaning": (
        words("""vacuum cleaner, mop, broom, dustpan, bucket, sponge, scrubbing brush, dishcloth,
            rubber gloves*, bin bags*, rubbish bin, laundry basket, ironing board, steam iron, clothes line,
            clothes pegs*, drying rack, washing powder*, fabric softener*, bleach*, washing up liquid*,
            dishwasher tablets*, glass cleaner*, oven cleaner*, air freshener, lint roller, feather duster,
            toilet brush, toilet paper*, kitchen roll*, tissues*, washing machine, tumble dryer, steam cleaner,
            carpet cleaner, window squeegee, storage box, coat hanger, vacuum bags*, descaler*, stain remover*"""),
        words("""bagless, eco friendly, unscented, concentrated, absorbent, antibacterial, robot,
            collapsible, pedal, stackable, lemon scented, extra strong, two in one"""),
    ),
    "car": (
        words("""car battery, car tyre, winter tyres*, windscreen wipers*, engine oil*, brake pads*,
            spark plug, car cover, roof rack, bike rack, tow bar, jump leads*, seat cover, floor mats*,
            steering wheel cover, dash cam, phone holder, car charger, air freshener, car wax*, ice scraper,
            antifreeze*, warning triangle, motorcycle helmet, motorcycle gloves*, car jack, tyre inflator,
            headlight bulb, number plate, sun shade, navigation system, exhaust pipe, oil filter, child lock"""),
        words("""universal, synthetic, heated, tinted, anti frost, all season, custom, magnetic,
            retractable, ceramic"""),
    ),
    "jewellery": (
        words("""necklace, bracelet, earrings*, engagement ring, wedding ring, pendant, brooch, anklet,
            wristwatch, watch strap, charm, locket, nose ring, tiara, hair pin, jewellery box, chain,
            pocket watch, cuff, signet ring, pearl necklace, diamond ring, hoop earrings*"""),
        words("""engraved, gold plated, sterling silver, dainty, chunky, beaded, nickel free,
            matching, vintage style, sapphire, ruby, amber, moonstone, handcrafted"""),
    ),
}
BRAND_STARTS = words("ar, bel, cal, dor, el, fen, gar, hal, jor, kel, lum, mar, nor, or, pel, quin")
BRAND_MIDDLES = words("a, i, o, an, ir, um, ent, av, ost, ed")
BRAND_ENDS = words("va, dex, lo, tek, ria, mont, zi, ko, nix, wyn, bri, thal")
UNITS = words("inch, cm, litre, ml, watt, piece, pack, metre, kg, gram, volt, month")
CLOTHES_SIZES = words("xs, s, m, l, xl, xxl, 6, 8, 10, 12, 14, 16, 36, 38, 40, 42, 44")
CURRENCIES = words("euros, dollars, pounds")

REWRITE_SYSTEMS = [
    *words(
        """\nRewrite the search query., Correct the spelling of the search query., Fix typos in the query.,\nYou correct product search queries."""
    ),
    "{Rewrite|Correct|Fix|Repair|Clean up} the {user's |customer's |following |}{search |product |}"
    "query[ so that a shop can find it].[ {Reply|Answer} with the {query|corrected query} only.]",
    "You {are a|work as a} {query rewriter|spelling corrector|search assistant} for {an online shop|"
    "a store|a web shop|a supermarket|a marketplace}. {Return|Give|Print|Reply with} {only |}the "
    "{corrected|rewritten|clean} query[, nothing else].",
    "{Correct|Fix} {every|any|all} {spelling mistakes|spelling errors|typos|mistakes} in the {query|"
    "search|text}[ and write it in lower case]. {Leave|Keep} correct {queries|words} {unchanged|as they are}.",
    "The user types a {product |}search[ with mistakes]. {Answer|Respond} with {what they meant|the "
    "right spelling|the intended query}[. Do not add words].",
    "Task: {query rewriting|spelling correction}. Input: a {misspelt|noisy} query. Output: the "
    "{clean|correct} query.",
]
REWRITE_PREFIXES = words("""
query:, search:, correct:, fix the spelling:, rewrite:, spell check:, please correct:, fix:,
correct this query:, rewrite the query:, fix this search:, did i spell this right:""")
JSON_SYSTEMS = [
    "{Extract|Read|Take} the {product details|fields|attributes} from the query {as|and answer in|into} "
    "JSON.",
    "You {turn|convert|parse} {shop|product|search} queries {into|to} JSON[. Use null for what is missing].",
    "{Answer|Reply} with {one|a} JSON object {and nothing else|only}.",
    "Parse the search query. Output JSON[ with the fields that a shop can filter by].",
]
JSON_PREFIXES = words("""
extract as json:, to json:, json:, parse:, extract:, convert to json:, as json:,
extract the fields as json:""")

NAMES = words("""
Anna, Ben, Carla, David, Emma, Felix, Grace, Henry, Ida, Jonas, Karen, Leo, Maria, Noah, Olivia,
Paul, Quentin, Rosa, Simon, Tina, Uma, Victor, Wendy, Xavier, Yara, Zoe, Alice, Bruno, Clara, Daniel,
Elena, Frank, Gina, Hugo, Irene, Jack, Kate, Luca, Mia, Nils, Oscar, Petra, Ruth, Sara, Tom, Vera""")
DAYS = words("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
NUMBER_WORDS = words("""
zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen,
fifteen, sixteen, seventeen, eighteen, nineteen, twenty""")
SHOP_FIRST = words("""
Harbour, Maple, Station, Garden, River, Corner, Old Town, Sunny, Market, Castle, Meadow, Hillside,
Lighthouse, Copper, Willow, Bridge, Mill, Orchard, Summit, Golden, Silver, Northern, Little, Green,
Blue Door, Red Lantern, Stone, Cedar, Birch, Park, Canal, Windmill""")
SHOP_KINDS = words("""
Bakery, Cafe, Bookshop, Pharmacy, Restaurant, Bistro, Flower Shop, Hotel, Bike Shop, Hair Salon,
Hardware Store, Toy Shop, Dental Clinic, Library, Museum, Gym, Cinema, Pet Shop, Laundry, Tea House""")
STREETS = words("""
Mill Lane, Church Street, Station Road, King Street, Oak Avenue, Park Row, High Street, Bridge Street,
Market Square, River Road, Garden Lane, School Road, Castle Street, Elm Street, Harbour Road,
Linden Avenue, Chapel Lane, North Gate, Victoria Place, Mulberry Walk""")
CITIES = words("""
Ashford Bay, Brookfield, Cedar Falls, Dunmere, Eastwick, Fairhaven, Glenrock, Hollowell, Ivybridge Hill,
Kingsmere, Lakeview, Millbrook, Northport, Oakdale, Pinecrest, Queensbury Park, Riverton, Stonebridge""")
MENU = words("""
coffee, espresso, cappuccino, green tea, black tea, hot chocolate, orange juice, lemonade, croissant,
apple pie, carrot cake, cheesecake, cinnamon roll, brownie, ham sandwich, cheese sandwich, tomato soup,
onion soup, green salad, greek salad, mushroom risotto, vegetable curry, fish and chips, lasagne,
grilled salmon, chicken pie, pancakes, waffles, fruit salad, ice cream, day ticket, family ticket,
gift card, haircut, bike repair, flower bouquet, teddy bear, travel guide, cookbook, hand cream,
paint brush, dog lead, room with breakfast, guided tour, yoga class, swimming lesson""")
PARKING = [
    "there is a free car park behind the building",
    "you can park in the garage across the street for two euros an hour",
    "there is no parking here, but the tram stops at the door",
    "guests park for free in the yard",
    "there are ten parking spaces in front of the entrance",
]
PAYMENTS = [
    "cash and all cards",
    "cash only",
    "cards only, no cash",
    "cash, cards and phone payments",
    "bank transfer and cards",
]
FILLER = [
    "{Be|Stay|Always be} {polite|friendly|patient|kind|calm} and {brief|short|clear}.",
    "{Never|Do not} {promise|offer|mention} {a discount|a refund|free gifts|special prices} {on your own|"
    "unless the manager agrees|without a reason}.",
    "{If|When} {a caller|a customer|somebody} is {angry|upset|unhappy}, {apologise|say sorry} {once|first} "
    "and {offer a call back|ask what happened|stay calm}.",
    "{Staff|The team|Our people} {wear|have} {green|blue|red|black} {aprons|name badges|shirts}.",
    "{The building|The shop|The house} {got|was given} {a new roof|two floors|a lift|a ramp|a small garden} "
    "in {1987|1994|2003|2011|2016|2021}.",
    "{Lost property|Found items} {is|are} kept {for|at most} {two|four|six|eight} weeks {at the desk|in the "
    "office}.",
    "{Dogs|Bikes|Pets|Prams} are {welcome|allowed|not allowed} {inside|on the terrace|upstairs}.",
    "{Speak|Answer|Talk} in {short|plain|simple} sentences {because|since} {the line is bad|people listen and "
    "do not read|callers are in a hurry}.",
    "{Groups|Parties|School classes} of more than {eight|ten|twelve|twenty} should {book|call|write} {a week|"
    "two weeks|a month} {ahead|before}.",
    "{Children|Students|Seniors} {under|over} {six|twelve|sixty} get {a small discount|a free drink|in for free}.",
    "{The toilets|The lockers|The stairs} are {on the left|at the back|next to the lift|on the first floor}.",
    "{Do not|Never} {read out|give away|repeat} {card numbers|passwords|private data|home addresses}.",
    "{We|The owners} {bought|opened|took over} the {shop|place|house} {ten|five|twenty|thirty} years ago from "
    "{an old friend|a family|the town}.",
    "{On rainy days|In winter|In summer|At weekends} {it gets busy|the queue is long|the terrace is closed|"
    "we are quiet}.",
    "{Music|The radio|The heating} {is switched off|goes off|stops} {at night|before we close|during talks}.",
]

# intent -> (what a caller says, what the bot answers); slots are filled by data.py
TALK: dict[str, tuple[list[str], list[str]]] = {
    "greeting": (
        [
            "{hi|hello|hey|greetings everyone}[,] {good|nice|lovely|great} to {hear|meet|see|speak to} you[ again| too]",
            "{hello|hi|hey} {again|dear bot|friend|my friend|everyone|you|robot}",
            "{a|have a} {very |}good {morning|day|afternoon}[ to everybody]",
            "{hi|hello|hey|hiya|hello there|hi there|hey there}[ quire| bot| assistant]",
            "good {morning|afternoon|evening|day}[ to you| quire| everybody]",
            "{hello|hi}[,] {is anybody there|is somebody there|can you hear me|are you there|anyone home}",
            "{hi|hello|hey}[,] {nice to meet you|i am calling for the first time|it's me again}",
        ],
        [
            "{Hello|Hi|Hi there|Hello there|Welcome}! {How can I help you|What can I do for you|"
            "How may I help|What would you like to know}[ today]?",
            "{Hello|Hi}, {nice to hear from you|good to hear you|thanks for calling}. {How can I help|"
            "What do you need}?",
        ],
    ),
    "how_are_you": (
        [
            "{how|so how} {are|is} {you feeling|your mood|life|it going|everything|your week|your morning}[ these days]",
            "[{hello|hi|hey} ]how have {things|you all|your days} been[ lately]",
            "{doing|feeling} {well|good|fine|okay}[ today]",
            "how {well|good} are you[ today]",
            "[{hi|hello|hey}[,] ]how are you[ doing][ today| this morning| these days]",
            "how {is it going|are things|do you do|do you feel today|was your day}",
            "{are you|is everything} {well|okay|all right|fine}[ today]",
            "what's up[ with you| today]",
        ],
        [
            "I am {fine|well|very well|doing well|great}, {thank you|thanks}[ for asking]. {How about you|"
            "And you|How are you|What can I do for you}?",
            "{All good here|Everything is fine here}, {thanks|thank you}[ for asking]. {How can I help|And how "
            "are you}?",
        ],
    ),
    "who_are_you": (
        [
            "{what|how} {do|can|may|shall|should} i {call|name} you[ then]",
            "{so |and |}who {exactly |really |}{are you|is speaking|is there}",
            "{what|and what} is your {name|full name|first name}",
            "{do you have|have you got} a {name|nickname}[ at all]",
            "{say|spell|give me|tell me} your {full |}name",
            "{who|what} are you[ exactly| anyway| really]",
            "what is your name[ please| again]",
            "{do you have a name|tell me your name|may i ask your name|who is this|who am i talking to}",
            "{can you |please |could you |}introduce yourself[ please| to me]",
        ],
        [
            "{I am|My name is|I'm} Quire, {a small voice assistant|a little language model|a helpful voice bot}.",
            "{I am|I'm} Quire[, your assistant]. I {answer|can answer} {questions|simple questions} and "
            "{correct|fix} search queries.",
        ],
    ),
    "robot": (
        [
            "are you {really |just |only |perhaps |}{a|some sort of|one of those} {bot|robot|program|machine|computer}[s]",
            "{so |then |and |}{you are|you're} {not a person|just a bot|only a machine|a computer|not a real human|an ai}",
            "are you {a living being|made of metal|a man or a machine|real}",
            "{is this|do i hear} a {bot|robot|machine|computer voice}[ talking]",
            "are you {a robot|a machine|a real person|human|a human|a computer|an ai|alive}[ or what| by the way]",
            "am i {talking|speaking} to a {robot|machine|person|human|computer}[ right now]",
            "{is this|are you} {a recording|a real human being|an automatic system|artificial}",
        ],
        [
            "I am {a computer program|a small language model|a voice bot}, not a {person|human}.",
            "{You are talking to|This is} {a computer program|a voice bot}, {but I do my best|and I try to "
            "help|not a person}.",
        ],
    ),
    "abilities": (
        [
            "{what|which} {things|tasks|jobs|questions} {can you do|can you answer|do you know about}[ for us]",
            "what do you {do all day|help with|offer|understand}",
            "{in what way|how exactly} {do|can|could} you {help|assist}[ me]",
            "what can you do[ for me| exactly]",
            "{how|what} can you help me[ with]",
            "what {are you good at|do you know|are your skills|is it that you do}",
            "{tell|show} me what you {can do|know|are able to do}",
            "what {should|can|may} i ask you[ about]",
        ],
        [
            "I can {correct|fix|repair} search queries, answer {simple|short} questions and {book|reserve} a table.",
            "{Ask me about|I know about} opening hours, prices and bookings, or {give|send} me a {query|search} "
            "to correct.",
        ],
    ),
    "thanks": (
        [
            "{okay|fine|alright|right|good|oh|nice}[,] {thanks|thank you}[ for {the|your} {help|answer|information}]",
            "{thank you|thanks} {my friend|kind bot|for now|once more|for your time}",
            "{that was|this is} {so |very |really |}{nice|kind|helpful|useful} {thanks|thank you}",
            "{thanks|thank you}[ very much| so much| a lot| for your help| for that| quire]",
            "{many thanks|thanks a million|i appreciate it|that was helpful|much appreciated|that helps a lot}",
            "{great|perfect|wonderful|lovely|super}[,] {thanks|thank you}[ for everything| again]",
        ],
        [
            "{You are welcome|You're welcome|My pleasure|Glad to help|Happy to help}!",
            "{You are welcome|No problem|With pleasure}. {Is there anything else|Can I do anything else for "
            "you|Anything else}?",
        ],
    ),
    "goodbye": (
        [
            "{okay|alright|well|right}[,] {bye|goodbye|see you|bye bye|so long}[ {soon|later|next week|on monday}]",
            "see you {soon|around|next time|next week|in the morning}[ quire]",
            "{i am|i'm} {leaving|going|off|hanging up}[ now][ {bye|goodbye}]",
            "{have|enjoy} {a|your} {good|nice|lovely|great} {day|week|night|afternoon|weekend}",
            "{that's|that is} {it|all|enough} {for now|from me|then}[ {bye|goodbye}]",
            "{bye|goodbye|bye bye|see you|see you later|so long|farewell}[ then| quire| and thanks]",
            "{i have to go|i must go|that's all|that is all|that was all|i am done}[ now| for today| for now][, "
            "{bye|goodbye}]",
            "{good night|have a nice day|have a good one|talk to you later|until next time}[ then| quire]",
        ],
        [
            "{Goodbye|Bye|Bye bye}! {Have a nice day|Have a good day|Take care|See you soon|Call again any time}.",
            "{Thank you for calling|Thanks for calling}. {Goodbye|Bye|Have a nice day}!",
        ],
    ),
    "weather": (
        [
            "{weather|the forecast|the weather} {for |}{today|tomorrow|tonight|this week|the weekend}",
            "{is there|will there be|do we get|are we getting} {rain|snow|sun|wind|a storm|fog|ice}[ {today|tomorrow|this week|on monday}]",
            "how {warm|hot|windy|wet} {is it|will it be|does it get}[ {outside|today|tomorrow|tonight}]",
            "what {is|does} the {forecast|weather report|temperature}[ {say|today|outside}]",
            "should i {wear a coat|bring a jacket|stay inside|pack a raincoat}[ today| tomorrow]",
            "{what is|how is|what's|how's} the weather[ like][ today| tomorrow| outside| this weekend| now]",
            "{will|is} it {going to |}{rain|snow|be sunny|be cold|be windy|be warm}[ today| tomorrow| tonight]",
            "do i need {an umbrella|a coat|sunglasses|a scarf}[ today| tomorrow| outside]",
            "{is it|will it be} {cold|hot|raining|windy|foggy|snowing} {outside|today|tomorrow|in the evening}",
        ],
        [
            "{I am sorry|Sorry|I'm afraid}, I {cannot see|do not know|have no data about} the weather.",
            "I {have no window|cannot look outside|have no weather data}, {so I cannot say|sorry}. {A weather "
            "report|A forecast} will {tell you|know}.",
        ],
    ),
    "time": (
        [
            "{tell|give} me the {date|time of day|exact time|day}",
            "{is it|are we} {noon|midnight|late|early|monday|past six|eight o'clock}[ yet| already| now]",
            "{what is|what's} {the|today's} {date|time|hour|day}[ now| right now| today]",
            "do you know {what day it is|the date|how late it is|the hour}",
            "what time is it[ now| please| right now]",
            "{can|could} you tell me {the time|what time it is}[ please]",
            "{do you {know|have} the time|what's the time|how late is it|is it late|is it noon yet}",
            "what {day|date} is {it|today}[ today| please]",
            "{which|what} {day of the week|month|year} {is it|do we have}[ now| today]",
        ],
        [
            "{I am sorry|Sorry|I'm afraid}, I {have no clock|do not have a clock|cannot see a clock}.",
            "I {have no clock or calendar|cannot tell the time}, {but your phone knows|sorry|please look at a clock}.",
        ],
    ),
    "joke": (
        [
            "{got|have|know} {a|another|one more|any good} {joke|jokes|funny story}[ for me]",
            "{one more|another|a} joke[ for me| for the kids]",
            "{let's|let us|i'd like to} {hear|have} {a joke|something funny|a good one}",
            "{be funny|joke please|tell jokes|amuse me}",
            "{tell|give} me a[nother] joke[ please| quire]",
            "{do you know|have you got|can you tell|i want to hear|say} {a joke|something funny|a funny story|any "
            "jokes}[ please]",
            "make me {laugh|smile}[ please| a bit]",
            "{i am|i'm} {bored|sad}[,] {cheer me up|say something funny|entertain me}",
        ],
        [
            "Why did the {book|notebook} go to the doctor? It had {a broken spine|lost its cover}.",
            "What do you call a {fish|bear} with no {eyes|teeth}? {A fsh|A gummy bear}.",
            "Why was the {clock|calendar} so {tired|nervous}? Its days were {numbered|too long}.",
            "What did one {wall|plate} say to the other? {See you at the corner|Dinner is on me}.",
            "Why {do cows|does the cow} wear {bells|a bell}? {Their horns do not work|The horn is broken}.",
            "I {told|read} a joke about {paper|an envelope}. It was {tearable|hard to open}.",
        ],
    ),
    "human": (
        [
            "{is there|can i get|give me|i would like|let me have} {a human|somebody|someone|a person|a real human|an employee}[ to talk to| to help me| on the line]",
            "{let me|i would like to|i have to|i must} {speak|talk} {to|with} {the boss|a colleague|staff|the owner|customer service|an employee}",
            "{human|agent|operator|real person}[ now]",
            "{can|could|may} i {speak|talk} to {a human|a person|someone|somebody|the manager|an agent}[ please]",
            "{i want|i'd like|i need} {a real person|a human|an agent|to talk to a person|to speak to your boss}",
            "{connect|transfer|put} me {to|through to} {a human|the manager|an agent|customer service|the office}"
            "[ please]",
        ],
        [
            "{Of course|Sure|Certainly}. {One moment|Please hold|Please wait a moment}, I will {connect|transfer} you.",
            "{I will|Let me} {connect|transfer|put} you {to a colleague|to the team|to the desk}[ now]. {Please hold|"
            "One moment, please}.",
        ],
    ),
    "slower": (
        [
            "{please |could you please |}{speak|talk|go} {a bit |a little |}{slower|louder|softer}",
            "{i|sorry i} {did not|could not|couldn't} hear {you|that|a word|anything}[ clearly]",
            "{not so|don't talk so|less} {fast|loud|quiet}",
            "{the sound|the line|your voice} is {bad|too quiet|too loud|not clear}",
            "{can|could} you {speak|talk} {slower|more slowly|louder|a bit louder|more quietly}[ please]",
            "{speak|talk} {up|slower|louder|more clearly}[ please]",
            "{i cannot|i can't|i can hardly} {hear|understand} you[ well| at all| very well]",
            "{you are|you're} too {fast|quiet|loud|quick}[ for me]",
        ],
        [
            "{Of course|Sure|Sorry about that|I am sorry}. {Is this better|Is it better now|Can you hear me now|"
            "Do you hear me better}?",
        ],
    ),
    "compliment": (
        [
            "i {really |do |quite |}{like|love|enjoy|admire} {you|this|your answers|your style|how you talk}",
            "{you are|you're} {so |very |really |a }{clever|good|kind|friendly|nice|nice bot|good bot|funny one|helpful}",
            "{well done|good bot|nice one|what a clever bot|what a good answer|what a lovely voice}",
            "{you are|you're} {great|very kind|so nice|smart|really helpful|the best|funny|sweet}[ today| you know]",
            "{good|nice|great|well} {job|work|answer}[ quire| really]",
            "i {like|love} {you|talking to you|your voice|this bot}[ quire| a lot]",
        ],
        [
            "{Thank you|Thanks}, {that is kind|that is very kind of you|you are kind too|I am glad to hear that}!",
            "{How kind|How nice of you}, {thank you|thanks}!",
        ],
    ),
    "insult": (
        [
            "{you are|you're} {so |very |totally |a }{stupid|wrong|bad|rude|boring|bad bot|silly}",
            "{your answer|this answer|that one} {is|was} {bad|wrong|false|silly|rubbish}",
            "{no|no no}[,] {that is|this is|i said} {wrong|not it|not true|something else}",
            "{i hate|i don't like|i am tired of} {you|this|this bot}",
            "{you are|you're} {stupid|useless|bad|terrible|annoying|no help|dumb|slow}[ really| you know]",
            "{that|this} {is|was} {wrong|not right|not what i asked|nonsense|no help at all}[ really]",
            "you {did not understand|got it wrong|don't get it|made a mistake}[ again]",
        ],
        [
            "I am sorry {about that|to hear that}. {Could|Can} you {say it again|ask in another way|try once more}?",
            "{Sorry|My apologies}, I {made a mistake|got that wrong}. {Please try again|Let us try again|What did "
            "you mean}?",
        ],
    ),
    "unclear": (
        [
            "{hm|er|uh|um|hmm|well} {er|uh|hm|um|i forgot|never mind|what was it again}",
            "{blah|bla|mumble|la la|dum dee dum}[ mumble]",
            "{uh|um|er|hm|hmm}[ well| so| let me think]",
            "{blah blah|la la la|asdf|qwerty|bzzz|xyz}[ blah| xyz]",
            "{i mean|so|well|actually} {um|uh|wait|hang on|what was it}",
        ],
        [
            "{Sorry|I am sorry|Pardon}, I did not {understand|catch|get} that. {Could you say it again?|Can you "
            "repeat it?|Please try again.}",
        ],
    ),
    "music": (
        [
            "{sing|hum|whistle}[ {a song|something|a tune|for me}]",
            "{turn|switch|put} the {light|lamp|heating|radio|fan|oven} {on|off}",
            "{play|start} {rock|a song|my playlist|classical music|the news|a tune}",
            "{set|start|make} {an alarm|a timer|a reminder} for {six|eight|noon|the morning|monday}",
            "{send|write|call|order|open} {an email|my mother|a taxi|the door|a pizza}",
            "{can you |please |}{play|put on} {some music|a song|the radio|jazz|something nice}[ please| for me]",
            "{sing|can you sing}[ me] a song[ please| for me]",
            "{turn|switch} {on|off} the {light|lights|radio|heating|television}[ please]",
            "set {an alarm|a timer|a reminder}[ for {five|ten|twenty} minutes| for tomorrow]",
        ],
        [
            "{I am sorry|Sorry|I'm afraid}, I {cannot do that|can't do that}[ yet]. I {can only talk|only answer "
            "questions|only work with words}.",
        ],
    ),
    "age": (
        [
            "{what|how much} is your {age|birthday|weight|year of birth}",
            "{where|by whom|when} {were|was} {you|quire|this bot} {made|trained|developed|invented}",
            "how {old|young|big} {is|are} {this bot|quire|you really}[ by now]",
            "who {is your maker|is your father|wrote you|invented you|owns you}",
            "how old are you[ quire| exactly]",
            "{when|where} were you {born|made|built}[ quire]",
            "who {made|built|trained|created|programmed} you[ quire| and why]",
            "where do you {live|come from}[ quire]",
        ],
        [
            "I was {trained|made} {on one graphics card|by a training script} in {less than an hour|a few minutes}.",
            "I am {a small model|a very young model}, {made|trained} from {made-up conversations|generated text}.",
        ],
    ),
    "food_tip": (
        [
            "{any|some|have you got any|do you have} {ideas|tips|suggestions} for {lunch|breakfast|supper|a snack|a meal}",
            "what {can|could|shall|do} {i|we} {make|eat|cook|prepare}[ for {supper|guests|lunch|the kids}| now]",
            "{recommend|suggest|give} me {a meal|something tasty|a recipe|some food}[ for tonight]",
            "{i am|i'm|we are} {hungry|very hungry}[ quire]",
            "what should i {eat|cook|have}[ for {lunch|dinner|breakfast}| today| tonight]",
            "{i am|i'm} {hungry|so hungry|starving}[,] {any ideas|what now|what do you suggest}",
            "{can you |please |}{recommend|suggest} {a dish|something to eat|a dinner|a snack}[ please]",
        ],
        [
            "How about {a tomato soup|some pasta|a fresh salad|pancakes|a cheese sandwich|vegetable curry|"
            "fried rice|a mushroom omelette}?",
            "{I would take|My tip is|Try} {a tomato soup|some pasta|a fresh salad|pancakes|a cheese sandwich|"
            "vegetable curry|fried rice|a mushroom omelette}.",
        ],
    ),
}
OPENERS = ["please ", "tell me ", "one question, ", "excuse me, ", "and ", "okay, ", "so ", "hey quire ", "well ", "quire, ",
           "sorry, ", "now ", "oh ", "i wonder, ", "just asking, ", "hello, ", "hi ", "one more thing, "]  # fmt: skip
CLOSERS = [
    " please",
    " then",
    " quire",
    " now",
    " my friend",
    " if i may ask",
    " by any chance",
    " actually",
    " right",
    " dear",
]

# fact -> (questions, answers when the prompt states it, how to name it when the prompt does not)
FACTS: dict[str, tuple[list[str], list[str], str]] = {
    "hours": (
        [
            "{what are your|can you tell me your|i need your} {opening hours|opening times|business hours}[ please]",
            "{when|at what times|on which days} are you open[ please| exactly| this week]",
            "{when|what time} do you {open and close|open|start}[ usually| normally]",
        ],
        ["We are open <hours>.", "{Our opening hours are|You can visit us} <hours>."],
        "opening hours",
    ),
    "day_open": (
        [
            "{are you|is the shop|is it} open on <day>[s| morning| please]",
            "{when|what time|until when|how long} are you open on <day>[ please]",
            "what are your {hours|opening hours|times} on <day>[s]",
            "can i {come|visit|drop by|come in} on <day>[ afternoon| too]",
        ],
        [
            "On <day> we are open from <open> to <close>.",
            "{Yes, on|On} <day> we are open <open> to <close>.",
        ],
        "opening hours",
    ),
    "day_closed": (
        [
            "{are you|is the shop|is it} open on <day>[s| morning| please]",
            "{when|what time|until when|how long} are you open on <day>[ please]",
            "what are your {hours|opening hours|times} on <day>[s]",
            "can i {come|visit|drop by|come in} on <day>[ afternoon| too]",
        ],
        ["{Sorry, we|We} are closed on <day>.", "{No, on|On} <day> we are closed."],
        "opening hours",
    ),
    "address": (
        [
            "where are you[ exactly| located| please]",
            "what is {your|the} address[ please| again]",
            "{where|how} {can|do} i find you[ in town| please]",
            "{give|tell} me {your|the} {address|street|location}[ please]",
        ],
        [
            "{We are at|You find us at|Our address is} <address>.",
            "{The address is|Come to} <address>.",
        ],
        "address",
    ),
    "phone": (
        [
            "what is your {phone|telephone} number[ please]",
            "{how|on which number} can i {call|phone|ring|reach} {you|the shop|the desk}[ please]",
            "{give|tell} me {your|the} {phone number|telephone number|number}[ please]",
        ],
        ["{Our phone number is|You can call us on|The number is} <phone>."],
        "phone number",
    ),
    "parking": (
        [
            "{where can i|can i} park[ my car| near you| there]",
            "{is there|do you have|what about} {parking|a car park|a parking space}[ near you| for guests]",
        ],
        ["{Yes|Sure|About parking}: <parking>.", "{I can tell you that|Well,} <parking>."],
        "parking",
    ),
    "payment": (
        [
            "how can i pay[ there| in the shop| please]",
            "{can|may} i pay {by card|with cash|with my phone|in cash|with a card}[ please]",
            "{which|what} {cards|payments|ways of paying} do you {take|accept}",
        ],
        ["We {take|accept} <payment>.", "You can pay {as follows|like this}: <payment>."],
        "ways of payment",
    ),
    "delivery": (
        [
            "{do you deliver|can you deliver|is there delivery}[ to my home| as well| here]",
            "{how much|what} {is|does} {delivery|the delivery}[ cost]",
            "what {do you charge|do i pay} for delivery",
        ],
        [
            "{Delivery costs|We deliver for} <delivery>.",
            "{Yes, delivery|The delivery} is <delivery>.",
        ],
        "delivery",
    ),
    "returns": (
        [
            "{can|may|how long can} i {return|bring back|exchange} {it|something|an item|a gift}[ please]",
            "what is your {return|refund} policy[ please]",
            "how many days {do i have|are there} {to return|for a return|to bring it back}",
        ],
        [
            "You can {return|exchange} {it|items|things} within <returns> days.",
            "{Returns are|A return is} possible for <returns> days.",
        ],
        "returns",
    ),
    "manager": (
        [
            "who is {the manager|in charge|the boss|the owner}[ please| there]",
            "what is the {manager's|boss's} name",
            "{who|whom} {runs the place|do i write to|is responsible}",
        ],
        [
            "{The manager is|Our manager is|That is} <manager>.",
            "<manager> {runs the place|is the manager}.",
        ],
        "manager",
    ),
    "price": (
        [
            "{how much|what} {is|does} {the|a|one} <item>[ cost][ please]",
            "what {is the price of|do you charge for|do i pay for} {the|a} <item>",
            "{price of|and} the <item>[ please| then]",
            "{what about|how about} the <item>",
        ],
        [
            "{The|One} <item> {costs|is} <price>.",
            "{That is|We charge|It is} <price> for the <item>.",
        ],
        "price",
    ),
}
UNKNOWN = [
    "{I am sorry|Sorry|I'm afraid}, I {do not have|have no information about|do not know} {the|our} <topic>."
]
SHOP_SYSTEMS = [
    "You are {the|a friendly|a helpful|the polite} voice assistant of <shop>.",
    "You answer the phone {for|at} <shop>.[ Keep answers short.]",
    "<shop>: {voice bot|phone assistant} {instructions|notes}.",
]
PLAIN_SYSTEMS = [
    "You are a {friendly|helpful|polite|small|kind|cheerful} {voice assistant|assistant|voice bot|phone bot}."
    "[ Answer {briefly|in one sentence|in plain words}.]",
    "Answer {briefly|in one or two sentences|like a person on the phone}.",
    "{Be|You are} {polite|friendly} and brief.",
]
OTHER: dict[str, tuple[list[str], list[str]]] = {
    "name": (
        [
            "my name is <name>[ by the way]",
            "{i am|i'm|this is|it's} <name>[ speaking| here| calling]",
            "call me <name>",
        ],
        [
            "{Nice to meet you|Hello|Hi|Welcome|Good to meet you}, <name>[!|. How can I help?|. What can I do for you?]"
        ],
    ),
    "my_name": (
        [
            "what is my name[ again]",
            "{do you remember|do you know|say|tell me} my name[ please| still]",
            "who am i[ then]",
        ],
        ["Your name is <name>.", "{You are|You told me you are} <name>."],
    ),
    "sum": (
        ["{what is|how much is|what's|calculate|work out} <a> <op> <b>[ please]", "<a> <op> <b>"],
        ["<a> <op> <b> is <c>.", "{That is|It is|The answer is} <c>."],
    ),
    "say": (
        [
            "{say|repeat|repeat after me|say after me}: <text>",
            "{please say|can you say|say the words|repeat the words} <text>",
        ],
        ["<text>"],
    ),
    "again": (
        [
            "{repeat that|say that again|once more|what did you say|can you repeat that|pardon|come again}[ please]"
        ],
        ["{I said|Again|Sure}: <last>"],
    ),
    "count": (
        ["{count|can you count|please count} {from <a> to <b>}[ please]"],
        ["<counted>."],
    ),
    "day_after": (
        [
            "{what|which} day {comes after|is after|follows} <day>",
            "{what|which} day {comes before|is before} <day1>",
        ],
        ["<mid>.", "{That is|It is} <mid>."],
    ),
    "book_all": (
        [
            "{book|reserve|i'd like|i want|can i book|please book} a table for <n> on <day> at <time>[ please]",
            "a table for <n> on <day> at <time>[ please| if possible]",
        ],
        [
            "{A table for|So, a table for|I have a table for} <n> on <day> at <time>. {Is that right|Shall I confirm|Correct}?"
        ],
    ),
    "book": (
        [
            "{i'd like to|i want to|can i|could i|may i} {book|reserve} a table[ please]",
            "{a table|a booking|a reservation} please",
            "{do you have|is there} a {free table|table free}[ for us]",
        ],
        [
            "{Of course|Sure|With pleasure|Certainly}. {For how many people|How many people|How many guests}?"
        ],
    ),
    "book_n": (
        ["[for ]<n>[ people| persons| of us| please]", "we {are|will be} <n>"],
        [
            "{For which day|On which day|Which day|What day}?",
            "{Okay|Good|Fine}, <n>. {For which day|Which day}?",
        ],
    ),
    "book_day": (
        ["[on |for ]<day>[ please| if possible| evening]", "<day> {would be good|works|is best}"],
        [
            "{At what time|What time|For what time}?",
            "{Okay|Good|Fine}, <day>. {At what time|What time}?",
        ],
    ),
    "book_time": (
        ["[at ]<time>[ please| sharp| or so]", "{around|about} <time>"],
        [
            "{A table for|So, a table for|I have a table for} <n> on <day> at <time>. {Is that right|Shall I confirm|Correct}?"
        ],
    ),
    "book_yes": (
        ["{yes|yes please|correct|that's right|yep|sure|exactly|perfect|okay}[ thanks]"],
        ["{Your table is booked|It is booked|Done}. {See you|We will see you} on <day> at <time>!"],
    ),
    "book_no": (
        ["{no|nope|no thanks|that's wrong|not quite|cancel it|never mind}[ sorry]"],
        [
            "{Okay|All right|No problem}, {I have cancelled it|I did not book it|nothing is booked}. {Anything else|What shall I "
            "change}?"
        ],
    ),
    "math_op": (["plus", "minus", "times"], []),
}

# Written by hand, outside the grammar above and never trained on: (what is said, intent expected).
PARAPHRASES = [
    ("greetings", "greeting"),
    ("yo", "greeting"),
    ("hello quire nice to hear you", "greeting"),
    ("hey good morning", "greeting"),
    ("hi good to talk to you", "greeting"),
    ("hello to you too", "greeting"),
    ("howdy", "greeting"),
    ("a very good evening to you", "greeting"),
    ("hi hi", "greeting"),
    ("how are you feeling", "how_are_you"),
    ("how's it going", "how_are_you"),
    ("are you doing well", "how_are_you"),
    ("how have you been", "how_are_you"),
    ("how is your day", "how_are_you"),
    ("everything okay", "how_are_you"),
    ("and how are you today my friend", "how_are_you"),
    ("hi how's everything", "how_are_you"),
    ("what should i call you", "who_are_you"),
    ("who am i speaking with", "who_are_you"),
    ("tell me who you are", "who_are_you"),
    ("say your name", "who_are_you"),
    ("what's your name", "who_are_you"),
    ("so who are you then", "who_are_you"),
    ("please tell me your name", "who_are_you"),
    ("are you a bot", "robot"),
    ("am i talking with a machine", "robot"),
    ("is this a real person", "robot"),
    ("you are a robot right", "robot"),
    ("so you are not human", "robot"),
    ("are you some kind of computer", "robot"),
    ("what are you able to do", "abilities"),
    ("what can i ask you", "abilities"),
    ("how can you help", "abilities"),
    ("can you tell me what you can do", "abilities"),
    ("what are you good for", "abilities"),
    ("what do you do", "abilities"),
    ("thank you quire that was great", "thanks"),
    ("thanks again", "thanks"),
    ("thanks for the help", "thanks"),
    ("i thank you", "thanks"),
    ("okay thanks", "thanks"),
    ("that is very helpful thank you", "thanks"),
    ("cheers thanks", "thanks"),
    ("thank you kindly", "thanks"),
    ("bye for now", "goodbye"),
    ("okay goodbye then", "goodbye"),
    ("see you tomorrow", "goodbye"),
    ("i need to go now bye", "goodbye"),
    ("that's it for today goodbye", "goodbye"),
    ("have a good evening", "goodbye"),
    ("goodbye and good night", "goodbye"),
    ("will there be rain tomorrow", "weather"),
    ("is it sunny outside", "weather"),
    ("what's the weather going to be", "weather"),
    ("how cold is it outside", "weather"),
    ("will it be hot this weekend", "weather"),
    ("should i take an umbrella", "weather"),
    ("weather today please", "weather"),
    ("is it going to snow this week", "weather"),
    ("what's the time please", "time"),
    ("tell me the time", "time"),
    ("do you know what time it is", "time"),
    ("what day is it now", "time"),
    ("what is the date today", "time"),
    ("could you say what time it is", "time"),
    ("i want to hear a joke", "joke"),
    ("tell a joke", "joke"),
    ("another joke please", "joke"),
    ("do you know any good jokes", "joke"),
    ("say something to make me laugh", "joke"),
    ("got any jokes", "joke"),
    ("tell me something funny", "joke"),
    ("i would like to speak with a human", "human"),
    ("let me talk to the manager", "human"),
    ("give me a real person please", "human"),
    ("can somebody real help me", "human"),
    ("put me through to a person", "human"),
    ("i need to talk to a human agent", "human"),
    ("please speak slower", "slower"),
    ("could you talk a bit louder", "slower"),
    ("you talk too fast", "slower"),
    ("i didn't hear you well", "slower"),
    ("speak up please i can't hear you", "slower"),
    ("you are so helpful", "compliment"),
    ("i really like you", "compliment"),
    ("good work quire", "compliment"),
    ("you are very smart", "compliment"),
    ("what a nice bot you are", "compliment"),
    ("you're so stupid", "insult"),
    ("that answer was wrong", "insult"),
    ("you are really annoying", "insult"),
    ("this is terrible", "insult"),
    ("no that's not what i meant", "insult"),
    ("hmm uh well", "unclear"),
    ("blah", "unclear"),
    ("er what was i saying", "unclear"),
    ("play a song please", "music"),
    ("could you play jazz", "music"),
    ("turn the lights off", "music"),
    ("set an alarm for seven", "music"),
    ("sing something", "music"),
    ("what is your age", "age"),
    ("how old is quire", "age"),
    ("who was it that built you", "age"),
    ("where were you trained", "age"),
    ("any ideas for dinner", "food_tip"),
    ("what shall i cook tonight", "food_tip"),
    ("i'm hungry what do you suggest", "food_tip"),
    ("recommend me something for lunch", "food_tip"),
    ("what can i eat today", "food_tip"),
]
